"""Plug-ins of a user's own: small working examples to start from (`flywheel init`), and checks of their promises (`flywheel check`)."""
