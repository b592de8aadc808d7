"""Points of systems whose screens do not begin at the corner, or that count in points of several pixels; and windows that tell of them."""

from __future__ import annotations

from annotation.recorder.screen.camera import Camera
from annotation.recorder.screen.exclusions import Exclusions
from annotation.recorder.screen.windows import SeenWindow
from annotation.recordings.bundle import Box


class Desk:
    """One window, left of the first screen."""

    knows_windows = True

    def look(self) -> tuple[SeenWindow, ...]:
        box = Box(x=-1900, y=10, width=100, height=50)
        return (SeenWindow(window_id=1, pid=1, title="Notes", application="Editor", box=box, inner=box, is_active=True),)

    def close(self) -> None: ...


def test_points_and_windows_are_reported_in_pixels_of_the_pictures():
    camera = Camera(Desk(), Exclusions(), lambda: None)
    assert camera.placed(3, 4) == (3, 4)
    camera.offset_px, camera.scale = (-1920, 0), (2.0, 2.0)
    assert camera.placed(-1920, 0) == (0, 0) and camera.placed(-1910, 20) == (20, 40)
    assert camera._look()[0].box == Box(x=40, y=20, width=200, height=100)


def test_looks_tell_how_windows_were_in_a_stretch_of_time():
    camera = Camera(Desk(), Exclusions(), lambda: None)
    for _ in range(4):
        camera._look()
    assert len(camera._looks) == 2, "what does not change is kept twice: when it began and when it was last so"
    begun_s, last_s = (time_s for time_s, _ in camera._looks)
    assert len(camera.looks(begun_s, last_s)) == 2 and len(camera.looks(last_s, last_s + 9)) == 1
    assert camera.looks(0.0, begun_s - 1) == []
