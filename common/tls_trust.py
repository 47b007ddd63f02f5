"""Which certificates a TLS context trusts."""

import ssl


def trust(context: ssl.SSLContext, ca_file: str) -> None:
    """Trust each certificate in a PEM file, as Java trusts each one in a truststore.

    The file may hold an issuing authority without its root, or the certificate of a single server: OpenSSL by itself
    accepts only a chain that ends in a self-signed certificate. Raises OSError (ssl.SSLError is one).
    """
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(ca_file)
