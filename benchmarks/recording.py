"""What the recorder costs and hears: its processor time on a display that rests and on one that is worked on, how long after an action its
picture is stored, and the word error rate of speech that goes through the sound server into its microphone.

    python -m benchmarks.recording [--sentences 20] [--voice en-us+f2] [--seconds 20]

Linux with the Debian packages of scripts/setup.sh. The speech is espeak-ng's: a synthesiser of formants, far from a person's voice, which a
recogniser trained on people hears worse than people. What a person's speech gives has to be measured with a person.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

SENTENCES = (
    "first i click into the window to write a letter",
    "now i select all of the text and copy it",
    "then i open the file menu to save the document",
    "i think the name is wrong so i change it",
    "at the end i close the window",
    "i need to find the right button for this",
    "let me look at the next page of the list",
    "this is not what i wanted so i go back",
    "i type the name of the city and the date",
    "the price is too high so i look for another one",
    "i will wait until the page is ready",
    "now i press the green button at the bottom",
    "i drag the picture to the left side",
    "the list is long so i scroll down to the end",
    "i read the message before i answer it",
    "i want to know how old this file is",
    "so i open the folder with the pictures",
    "here i choose the second line",
    "i check the box and go on",
    "that is all i had to do",
)


@contextlib.contextmanager
def desk() -> Iterator[dict[str, str]]:
    """A display, a session bus and a sound server whose sink is the microphone; gives the environment that finds them."""
    with tempfile.TemporaryDirectory(prefix="recording-") as folder, contextlib.ExitStack() as stack:
        home = Path(folder)
        (home / "run").mkdir(mode=0o700)
        (home / ".asoundrc").write_text("pcm.!default { type pulse }\nctl.!default { type pulse }\n")
        env = {
            **os.environ,
            "HOME": folder,
            "XDG_RUNTIME_DIR": f"{folder}/run",
            "PULSE_SERVER": f"unix:{folder}/run/pulse/native",
            "PULSE_SOURCE": "person.monitor",
            "GSETTINGS_BACKEND": "memory",
            "GTK_MODULES": "gail:atk-bridge",
        }
        screen = ["Xvfb", "-displayfd", "{fd}", "-screen", "0", "1920x1080x24", "-nolisten", "tcp", "-noreset"]
        env["DISPLAY"] = ":" + _printed(stack, env, screen)
        bus = ["dbus-daemon", "--session", "--nofork", "--print-address={fd}", f"--address=unix:dir={folder}/run"]
        env["DBUS_SESSION_BUS_ADDRESS"] = _printed(stack, env, bus)
        _spawn(stack, env, ["openbox"])
        sink = "--load=module-null-sink sink_name=person rate=16000 channels=1"
        _spawn(stack, env, ["pulseaudio", "--daemonize=no", "--exit-idle-time=-1", "-n", sink, "--load=module-native-protocol-unix"])
        _spawn(stack, env, ["mousepad", "--disable-server"])
        time.sleep(3.0)
        yield env


def _spawn(stack: contextlib.ExitStack, env: dict[str, str], command: list[str], fds: tuple[int, ...] = ()) -> None:
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, env=env, stdin=quiet, stdout=quiet, stderr=quiet, pass_fds=fds, cwd=env["HOME"])
    stack.callback(process.wait)
    stack.callback(process.kill)


def _printed(stack: contextlib.ExitStack, env: dict[str, str], command: list[str]) -> str:
    read, write = os.pipe()
    _spawn(stack, env, [word.replace("{fd}", str(write)) for word in command], (write,))
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        return pipe.readline().decode().strip()


def hear(env: dict[str, str], sentences: tuple[str, ...], voice: str, speed: int) -> None:
    """Speak each sentence into the microphone; print what was heard and the word error rate."""
    import jiwer

    os.environ.update(env)
    from annotation.recorder.speech.microphone import Microphone, Sound
    from annotation.recorder.speech.speech import Sphinx

    recogniser, heard, used_s, spoken_s = Sphinx(), list[str](), 0.0, 0.0
    for sentence in sentences:
        sounds: list[Sound] = []
        microphone = Microphone()
        microphone.start(sounds.append)
        time.sleep(0.5)
        said = Path(env["HOME"]) / "said.wav"
        subprocess.run(["espeak-ng", "-v", voice, "-s", str(speed), "-w", str(said), sentence], env=env, check=True)
        subprocess.run(["paplay", "--device=person", str(said)], env=env, check=True)
        time.sleep(0.5)
        microphone.stop()
        samples = b"".join(sound.samples for sound in sounds)
        spoken_s += len(samples) / 32_000
        start_s = time.process_time()
        words = recogniser.words(samples, 0.0)
        used_s += time.process_time() - start_s
        heard.append(" ".join(word.text for word in words))
        print(f"  {sentence!r} -> {heard[-1]!r}", flush=True)
    rate = jiwer.wer(list(sentences), heard)
    print(
        f"{recogniser.name}, espeak-ng {voice} at {speed} words a minute, {len(sentences)} sentences: word error rate {rate:.2f}; "
        f"{used_s / spoken_s:.2f} s of processor time a second of sound"
    )


def cost(env: dict[str, str], seconds: float) -> None:
    """The recorder's processor time, first while nothing happens, then while somebody types and clicks."""
    with tempfile.TemporaryDirectory() as home:
        command = [
            sys.executable,
            "-m",
            "pipelines.cli",
            "record",
            "start",
            "cost",
            "-q",
            "x",
            "--signed",
            "Benchmark",
            "--recogniser",
            "none",
            "--home",
            home,
        ]
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).resolve().parents[1])
        assert process.stdout is not None
        while "recording cost" not in process.stdout.readline():
            pass
        time.sleep(3.0)
        idle = _used(process.pid, seconds, lambda: None, seconds)
        subprocess.run(["xdotool", "mousemove", "960", "540"], env=env, check=True)
        work = ["xdotool", "click", "1", "type", "--delay", "120", "some words are written here "]
        busy = _used(process.pid, seconds, lambda: subprocess.run([*work, "key", "Return"], env=env, check=True), 0.4)
        process.terminate()
        reported = process.communicate(timeout=120)[0]
        print(f"1920x1080, 8 pictures a second: {idle:.0%} of one processor while nothing happens, {busy:.0%} while somebody writes")
        print(f"  {reported.strip().splitlines()[0]}")


def _used(pid: int, seconds: float, act: object, pause_s: float) -> float:
    start_s, before = time.monotonic(), _processor_s(pid)
    while time.monotonic() - start_s < seconds:
        act()  # type: ignore[operator]
        time.sleep(pause_s)
    return (_processor_s(pid) - before) / (time.monotonic() - start_s)


def _processor_s(pid: int) -> float:
    """Of a process, its children that live, and those that ended (the readers of pixels)."""
    total = 0.0
    for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=len(SENTENCES))
    parser.add_argument("--voice", default="en-us+f2")
    parser.add_argument("--speed", type=int, default=130)
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    with desk() as env:
        cost(env, given.seconds)
        hear(env, SENTENCES[: given.sentences], given.voice, given.speed)


if __name__ == "__main__":
    main()
