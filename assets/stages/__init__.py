"""What the assets of all stages share: how one is declared, its resources, what it sends to its process and gets back, how it fails, and
what it says of what it made.
"""
