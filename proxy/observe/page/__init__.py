"""The status page of the admin listener: what is shown, its HTML, and how it is kept up to date in a browser."""
