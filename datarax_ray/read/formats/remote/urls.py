"""What a URL says by itself: whether it is one, where it leads, and how people may see it."""

from __future__ import annotations

import re


def is_url(path: str) -> bool:
    """Whether a path is for one of the clients here; file:// is a path of this machine."""
    return "://" in path and not path.startswith("file://")


def redacted(url: str) -> str:
    """The URL for people: without what may be a secret in it, as of a presigned one.

    >>> redacted("https://me:word@host/a.array_record?X-Amz-Signature=12")
    'https://host/a.array_record'
    """
    plain = re.sub(r"(?<=://)[^/@]*@", "", url)
    return plain.partition("?")[0] if "http" in plain.partition("://")[0] else plain


def root_of(url: str) -> str:
    """The scheme and the bucket or host of a URL: "s3://bucket"."""
    return "/".join(url.split("/", 3)[:3])
