"""The settings of a server."""

from dataclasses import dataclass

from tfm.config import Settings
from tfm.config.schema import count, setting


@dataclass(frozen=True, kw_only=True)
class ServeConfig(Settings, section="serve"):
    """Address and limits of `tfm serve`."""

    host: str = setting(
        "127.0.0.1",
        "Address to listen on; by default, only programs of this machine reach it.",
        common=True,
    )
    port: int = setting(
        5000, "Port to listen on; 0 takes any free port.", limits=(0, 65_535), common=True
    )
    api_key_file: str | None = setting(
        None, "File of the key that requests must have as api_key.", common=True, metavar="FILE"
    )
    min_confidence: float | None = setting(
        None,
        "Return a text as it is if the confidence in one of its sentences is below X.",
        limits=(0, 1),
    )
    cors: tuple[str, ...] = setting(
        (),
        "Origin of web pages that may read answers, such as https://example.org; * for all.",
        metavar="ORIGIN",
    )
    max_characters: int = count(
        20_000,
        "Maximum number of characters in all texts of a request, and in its glossary.",
        most=100_000_000,
        common=True,
    )
    max_body_bytes: int = setting(
        1_000_000, "Largest body of a request.", limits=(1_000, 1_000_000_000)
    )
    max_requests: int = count(
        100,
        "Maximum number of requests that wait or are translated; further requests are refused.",
        most=100_000,
    )
    max_connections: int = count(
        500,
        "Maximum number of open connections; requests on further connections are refused.",
        most=100_000,
    )
    answer_seconds: int = count(
        60, "Maximum time in seconds to answer a request, waiting included.", most=86_400
    )
    receive_seconds: int = count(
        10,
        "Maximum time in seconds for a body to arrive, and between two requests of a connection.",
        most=3600,
    )
    batch_characters: int = count(
        2_000,
        "Maximum number of characters in a batch of requests that are translated together.",
        most=100_000_000,
    )
