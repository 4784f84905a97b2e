"""The errors that are a user's to mend: one clear line each, never a traceback."""


class TfmError(Exception):
    """A failure with a message for the user: what, where, and what to do."""

    exit_code = 1


class UsageError(TfmError):
    """Flags or settings that contradict each other, or that nobody knows."""

    exit_code = 2


class DataError(TfmError):
    """Text, archives or binarized data that are missing, damaged or do not fit together."""


class DownloadError(DataError):
    """An archive that could not be fetched, or that is not the one it should be."""


class CheckpointError(TfmError):
    """A model folder that is missing, damaged or does not fit the request."""


class TrainingError(TfmError):
    """A run that cannot go on."""


class LostPeersError(TrainingError):
    """The other processes of a run are gone: why, they or their launcher know."""
