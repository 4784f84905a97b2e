# CPU: docker build -t tfm .     CUDA: docker build -t tfm --build-arg TORCH=cu130 .
FROM python:3.11-slim
# A folder of https://download.pytorch.org/whl: cpu, or one for a version of CUDA.
ARG TORCH=cpu
# Optional parts of tfm, such as [serve,export].
ARG EXTRAS=
# torch compiles for GPUs with the help of a C compiler.
RUN if [ "$TORCH" != cpu ]; then \
        apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev \
        && rm -rf /var/lib/apt/lists/*; \
    fi
WORKDIR /src
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY examples examples
COPY tfm tfm
RUN pip install --no-cache-dir --extra-index-url "https://download.pytorch.org/whl/$TORCH" ".$EXTRAS"
# Caches of a user that the image does not know.
ENV HOME=/tmp USER=tfm
WORKDIR /work
# The port of tfm serve, which needs EXTRAS=[serve] and --host 0.0.0.0.
EXPOSE 5000
ENTRYPOINT ["tfm"]
