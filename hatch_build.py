"""The description of the package for an index: README.md with absolute links."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Description(MetadataHookInterface):
    """Links README.md to the files of the repository at the tag of the version."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the description."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        for mark, kind in ((r"!\[[^\]]*\]\(", "raw"), (r"(?<!!)\[[^\]]*\]\(", "blob")):
            address = f"{metadata['urls']['Repository']}/{kind}/v{metadata['version']}/"
            text = re.sub(f"({mark})(?!https?:)", rf"\g<1>{address}", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
