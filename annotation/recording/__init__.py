"""Recording one's own work: events, pictures, speech, made private before they are stored, reviewed by the person, then handed over."""
