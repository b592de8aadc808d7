"""Who lends sessions: the protocol of session pools, the pool of this process, its slots and its queue, and how sessions are made."""
