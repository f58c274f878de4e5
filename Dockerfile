# A model behind HTTP (docs/how-to/serve.md):
#   docker build -t kgfast . && docker run -p 127.0.0.1:8000:8000 -v DIR:/model:ro kgfast
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++
RUN python -m venv /venv
WORKDIR /source
COPY requirements requirements
RUN /venv/bin/pip install --no-cache-dir --require-hashes --no-deps -r requirements/serve.txt
# An index beside PyPI's, which has torch without CUDA.
ARG TORCH_INDEX_URL=""
RUN /venv/bin/pip install --no-cache-dir \
    ${TORCH_INDEX_URL:+--extra-index-url "$TORCH_INDEX_URL"} -r requirements/torch.txt
COPY pyproject.toml setup.py MANIFEST.in README.md CHANGELOG.md LICENSE ./
COPY kernels kernels
COPY configs configs
COPY kgfast kgfast
RUN KGFAST_REQUIRE_EXTENSION=1 /venv/bin/pip install --no-cache-dir --no-deps \
    --no-build-isolation .

FROM python:3.12-slim
COPY --from=build /venv /venv
# The server reads, and writes nothing.
USER 65534
EXPOSE 8000
HEALTHCHECK --start-period=5m CMD ["/venv/bin/python", "-c", \
    "import urllib.request as r; r.urlopen('http://localhost:8000/health', timeout=9)"]
# `docker run` appends the words after the image, such as `--allowed-host kg.example.org`.
ENTRYPOINT ["/venv/bin/kgfast", "serve", "/model", "--host", "0.0.0.0"]
