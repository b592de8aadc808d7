"""Programs that run in the jail beside an application, under the system's Python. The host passes them as text; nothing imports them."""
