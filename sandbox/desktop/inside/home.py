"""What the home folder of every desktop begins with: settings that make applications look and behave the same each time."""

from __future__ import annotations

from pathlib import Path

FILES = {
    ".config/gtk-3.0/settings.ini": """[Settings]
gtk-cursor-blink=0
gtk-enable-animations=0
gtk-font-name=DejaVu Sans 10
gtk-icon-theme-name=Adwaita
gtk-recent-files-enabled=0
gtk-theme-name=Adwaita
gtk-xft-antialias=1
gtk-xft-hinting=1
gtk-xft-hintstyle=hintslight
gtk-xft-rgba=none
""",
    ".gtkrc-2.0": 'gtk-cursor-blink=0\ngtk-font-name="DejaVu Sans 10"\ngtk-icon-theme-name="Adwaita"\n',
    ".bashrc": "PS1='$ '\nunset HISTFILE\n",
    ".config/user-dirs.dirs": 'XDG_DESKTOP_DIR="$HOME"\nXDG_DOCUMENTS_DIR="$HOME"\nXDG_DOWNLOAD_DIR="$HOME"\nXDG_TEMPLATES_DIR="$HOME"\n',
}


def furnish(home: Path) -> None:
    for path, text in FILES.items():
        target = home / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
