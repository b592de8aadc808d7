"""The recorder of work in a browser, which hears its pages through the DevTools protocol."""
