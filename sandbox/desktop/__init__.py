"""Desktops: real applications in real windows, driven by a pointer and a keyboard and read through their accessibility trees."""
