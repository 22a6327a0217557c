import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
# Read, because importing the package would need what it installs.
INIT = (HERE / "bertfam_tf" / "__init__.py").read_text("utf-8")
(VERSION,) = re.findall(r'^__version__ = "(.+)"$', INIT, re.MULTILINE)

setup(
    name="bertfam-tf",
    version=VERSION,
    description="The BERT family in TensorFlow: load, fine-tune, serve raw text",
    long_description=(HERE / "README.md").read_text("utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11,<3.14",
    keywords=["BERT", "TensorFlow", "Keras", "NLP", "fine-tuning", "TensorFlow Serving", "LiteRT"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Text Processing :: Linguistic",
        "Typing :: Typed",
    ],
    packages=[*find_packages(include=["bertfam_tf", "bertfam_tf.*"]), "bertfam_serve"],
    package_dir={"bertfam_serve": "serving/server/bertfam_serve"},
    package_data={"bertfam_tf": ["py.typed", "models/table.json"], "bertfam_serve": ["py.typed"]},
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
        "plots": ["matplotlib"],
        "garden": ["tf-models-official>=2.20,<2.21"],
        "search": ["faiss-cpu"],
        "docs": ["furo", "myst-parser", "sphinx"],
        "vocabulary": ["tokenizers"],
        "xlm": ["sacremoses"],
        "bench": ["aiohttp", "matplotlib", "psutil", "scipy", "tokenizers", "tqdm"],
        "release": ["build", "twine"],
        "test": [
            "aiohttp",
            "cryptography",
            "faiss-cpu",
            "httpx",
            "hypothesis",
            "jax",
            "jupytext",
            "kubernetes-validate",
            "markdown-it-py",
            "matplotlib",
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
