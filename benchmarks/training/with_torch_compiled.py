"""Train torch.nn.Transformer in a plain loop, compiled by torch.compile."""

from with_torch import train

if __name__ == "__main__":
    train(compiled=True)
