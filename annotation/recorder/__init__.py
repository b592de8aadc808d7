"""The recorder of one's own work, on a person's machine: events, pictures, speech, made private before they are stored, reviewed by the
person, then sent. What receives a recording is annotation/service; what both know of it is annotation/recordings.
"""
