"""Values for a page: JSON, compressed, as base64. The page unpacks them with the browser's DecompressionStream.

JSON here is ASCII: what is no text in UTF-8 (half of a surrogate pair) stays what it was, as an escape. Base64 holds no
character that HTML gives a meaning to, so nothing that a value holds can end the element that it stands in.
"""

import base64
import gzip
import json
from typing import Any


def pack(value: Any) -> str:
    """Base64 of the gzip of JSON; the same bytes for the same value.

    Raises:
        ValueError: for NaN or infinity, which JSON does not have.
    """
    data = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")
    return base64.b64encode(gzip.compress(data, compresslevel=6, mtime=0)).decode("ascii")


def unpack(text: str) -> Any:
    """The inverse of `pack`, for tests and readers of a page."""
    return json.loads(gzip.decompress(base64.b64decode(text)))
