"""The web application: pages, data, and who may ask for them."""
