"""What runs inside a desktop's box, beside the applications: under Debian's own Python (3.11, standard library, python3-gi, and the mss
and Xlib packages bound in from our environment), so nothing here imports pydantic, the other rooms or the rest of sandbox/.

`main` is the program; it takes commands over a pipe (sandbox/desktop/local.py is the other end) and does them with `screen` (pixels),
`hands` (pointer and keyboard), `windows` (the window manager) and `accessibility` (AT-SPI elements).
"""
