from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent

setup(
    name="bertfam-tf",
    version="0.1.0",
    description="The BERT family in TensorFlow: load, fine-tune, serve raw text",
    long_description=(HERE / "README.md").read_text("utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11,<3.14",
    classifiers=[f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13)],
    packages=find_packages(include=["bertfam_tf", "bertfam_tf.*"]),
    package_data={"bertfam_tf": ["py.typed", "models/table.json"]},
    # constraints.txt has the versions that are tested together.
    install_requires=[
        "tensorflow>=2.20,<2.21",
        "tensorflow-text>=2.20.1,<2.21",
        "tensorflow-serving-api>=2.20,<2.21",
        "keras>=3.15,<4",
        "keras-nlp>=0.32",
        "tensorflow-datasets>=4.9.10",
        "importlib_resources",  # which etils, of tensorflow-datasets, imports and does not ask for
        "numpy",
        "ai-edge-litert",
        "flatbuffers",
        "h5py",
        "ml-dtypes",
        "safetensors",
        "sentencepiece",
        "huggingface-hub",
        "dacite",
        "PyYAML",
        "rich",
        "tensorboard",
    ],
    extras_require={
        "serve": ["grpcio", "grpcio-health-checking", "prometheus-client", "starlette", "uvicorn"],
        "ui": ["nicegui"],
        "browser": ["selenium"],
        "garden": ["tf-models-official>=2.20,<2.21"],
        "vocabulary": ["tokenizers"],
        "xlm": ["sacremoses"],
        "bench": ["aiohttp", "matplotlib", "psutil", "scipy", "tokenizers", "tqdm"],
        "test": [
            "aiohttp",
            "cryptography",
            "httpx",
            "hypothesis",
            "kubernetes-validate",
            "mypy",
            "pandas",
            "psutil",
            "pytest",
            "pytest-xdist",
            "ruff",
            "sacremoses",
            "scipy",
            "tokenizers",
            "tqdm",
            "types-PyYAML",
        ],
    },
    entry_points={"console_scripts": ["bertfam=bertfam_tf.cli:main"]},
)
