"""Android devices and emulators: apps driven by taps, swipes and keys over adb, and read through UI Automator's tree."""
