"""What REST APIs share: how requests are read, errors, OpenAPI and its page, messages as JSON."""
