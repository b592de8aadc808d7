"""The candidate tasks of a page by what they ask for: links, values that are read, fields and buttons, forms. compose.py joins them."""
