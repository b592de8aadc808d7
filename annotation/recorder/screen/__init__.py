"""What is on the screen: windows, pictures, elements, what of it is excluded, and pictures stored without what is private."""
