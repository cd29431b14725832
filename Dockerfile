# `ilme serve` in a container. With a domain folder my-domain (`ilme adapt` writes one) beside this file:
#
#   docker build -t ilme .
#   docker run -p 127.0.0.1:8000:8000 -e ILME_KEY=something-secret -v ./my-domain:/domains/my-domain:ro ilme
FROM python:3.12-slim

# Whoever breaks in is nobody. libsndfile comes with the soundfile package; nothing else of the system is needed.
RUN useradd --create-home ilme
WORKDIR /app

# torch without CUDA, from PyTorch's own index: it is the largest part, and changes least often.
RUN pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu torch==2.13.0

# Everything else in the versions that the tests run with.
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src ./src
RUN pip install --no-cache-dir -c constraints.txt ".[serve,hf,openai,onnx]"

USER ilme
# One thread for each decoding process; for more speed give `--workers` more processes.
ENV OMP_NUM_THREADS=1
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=6s --start-period=120s \
  CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/ready', timeout=5)"]

# SIGTERM, which `docker stop` sends, lets what is under way be finished. The key comes from the variable ILME_KEY.
ENTRYPOINT ["ilme", "serve", "--host", "0.0.0.0"]
CMD ["/domains/my-domain"]
