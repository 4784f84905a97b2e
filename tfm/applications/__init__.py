"""What is built on the core: a folder per application, which another one never imports."""
