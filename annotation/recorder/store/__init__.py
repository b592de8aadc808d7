"""A recording on the disk: a journal and files that survive a crash, sealed where a passphrase is set, wiped when deleted."""
