"""Many processes of sessions behind one pool: manager, worker, browser, page. The manager lives in the caller's process and hands out
leases; each worker process drives its own browsers, so that their traffic uses other cores and never the caller's interpreter lock.
"""
