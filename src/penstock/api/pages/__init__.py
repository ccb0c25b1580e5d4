"""Pages for people on the admin port: plain HTML from what the node knows, readable without scripts."""
