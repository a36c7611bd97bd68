"""Servers of files and stores: how long they are waited for, and what their failures mean."""

from __future__ import annotations

from typing import Any

from oocpr.errors import LostError, SetupError

PATIENCE = 60
"""Seconds after which a server that says nothing is lost."""

_LOST = {"ClientConnectionError", "ClientPayloadError", "HTTPClientError", "ConnectionError", "TimeoutError"}
_DENIED = {"PermissionError", "NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"}


def remote_error(url: str, error: BaseException) -> LostError | SetupError | None:
    """Translate an error of aiohttp, botocore, fsspec or Python that reading a URL raised; None if unknown.

    Examples
    --------
    >>> remote_error("http://host/g.txt", ConnectionResetError("reset")).exit_code
    7
    >>> remote_error("s3://bucket/g.txt", PermissionError("Access Denied")).exit_code
    8
    """
    names = {kind.__name__ for kind in type(error).__mro__}
    status = getattr(error, "status", 0)
    why = f"its server said nothing for {PATIENCE} s" if "TimeoutError" in names else str(error)
    cause = f"{url} cannot be read: {' '.join(why.split()) or type(error).__name__}."
    if names & _DENIED or status in (401, 403):
        return SetupError(cause, "Give credentials that may read it.")
    if names & _LOST or (isinstance(status, int) and status >= 500):
        return LostError(cause, "Run it again once its server answers; check the address if it never did.")
    # fsspec says of servers without an answer that they have no such file.
    behind = error.__cause__ or error.__context__
    return None if behind is None else remote_error(url, behind)


def server_options(url: str) -> dict[str, Any]:
    """Options of fsspec with which a server is waited for as long as it goes on answering.

    Raises ImportError if the library for its protocol is not installed.
    """
    if not url.startswith(("http://", "https://")):
        return {}
    from aiohttp import ClientTimeout

    return {"client_kwargs": {"timeout": ClientTimeout(sock_connect=PATIENCE, sock_read=PATIENCE)}}
