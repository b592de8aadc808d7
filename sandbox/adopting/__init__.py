"""Tasks made from a running web application: it is crawled, and what can be done there becomes tasks that oracles prove."""
