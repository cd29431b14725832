# The service in a container:   docker build -t ilme . && docker run -p 8000:8000 -v ./my-domain:/domains/my-domain ilme
FROM python:3.12-slim

# libsndfile comes with the soundfile package; nothing else of the system is needed.
RUN useradd --create-home ilme
WORKDIR /app

# torch without CUDA first: it is the largest part, and changes least often.
RUN pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu "torch>=2.11"
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip install --no-cache-dir ".[serve,hf,openai,onnx]"

USER ilme
ENV OMP_NUM_THREADS=1
EXPOSE 8000
HEALTHCHECK --interval=10s --start-period=120s \
  CMD python -c "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/ready', timeout=5)"

# The key comes from the variable ILME_KEY, see compose.yaml.
ENTRYPOINT ["ilme", "serve", "--host", "0.0.0.0"]
CMD ["/domains/my-domain"]
