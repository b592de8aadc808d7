"""Pictures and figures of the tables: charts and diagrams as SVG, and summaries of iterations."""
