"""Drawing: markup that escapes what it is given, numbers as people read them, axes, and plots as SVG."""
