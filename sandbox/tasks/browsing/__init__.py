"""The source "browsing": questions over linked pages of real data, shown in a browser without network, and answered in words."""
