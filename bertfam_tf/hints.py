"""Names from other libraries that users try first, and what to write here instead.

The errors for unknown names (arguments, fields, inputs, attributes) end with the line.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

# Names of other libraries, separated by spaces, and the line.
_LINES = (
    # Arguments of from_pretrained.
    (
        "max_len max_seq_len max_seq_length sequence_length model_max_length",
        "Write max_length=128, the number of tokens of an example.",
    ),
    (
        "num_labels num_classes id2label label2id",
        'Write labels=["negative", "positive"], in the order of the scores, or labels=2.',
    ),
    ("labels", 'TextClassifier takes labels, TokenTagger tags=["O", "B-PER", "I-PER"].'),
    (
        "dtype torch_dtype fp16 bf16",
        'Write keras.config.set_dtype_policy("mixed_bfloat16") before the model is made; '
        "load_backbone takes dtype.",
    ),
    ("hidden_dropout_prob", "Write dropout=0.1."),
    ("attention_probs_dropout_prob", "Write attention_dropout=0.1."),
    ("num_hidden_layers", "Write num_layers=12."),
    ("num_attention_heads", "Write num_heads=12."),
    ("max_position_embeddings", "Write max_positions=512."),
    ("layer_norm_eps", "Write norm_epsilon=1e-12."),
    ("type_vocab_size", "Write num_segments=2."),
    # Inputs of models.
    (
        "input_ids attention_mask token_type_ids",
        'Tasks take raw text: task.predict(["a text"]). Packed token ids are named token_ids, '
        "padding_mask and segment_ids.",
    ),
    # Arguments of fit.
    (
        "learning_rate lr optimizer weight_decay warmup warmup_ratio warmup_steps",
        "Write task.compile(bertfam_tf.optimizers.adamw(2e-5, total_steps=1000)) before fit, with "
        "the number of steps of all epochs.",
    ),
    ("num_train_epochs", "Write epochs=3."),
    ("per_device_train_batch_size train_batch_size", "Write batch_size=32."),
    ("num_iterations", "Write pairs=20."),
    ("num_epochs", "Write epochs=1."),
    (
        "body_learning_rate",
        "Write task.compile(bertfam_tf.optimizers.adamw(2e-5, total_steps=300)) before fit, with "
        "the number of steps of all epochs.",
    ),
    ("eval_dataset validation_dataset", "Write validation_data=(texts, labels)."),
    # Arguments of generate.
    (
        "generate.max_length",  # other functions have one
        "Write max_new_tokens=40, the number of tokens after the prompt.",
    ),
    ("do_sample", "Write temperature=1.0, top_k=50 or top_p=0.9, each of which samples."),
    (
        "eos_token_id stop_strings generate.stop",
        'Write stop_tokens=["."], tokens of the vocabulary or ids.',
    ),
    ("num_return_sequences", "Write generate([prompt] * 3, temperature=1.0)."),
    # Names of this package.
    (
        "AutoTokenizer BertTokenizer BertTokenizerFast",
        'Write bertfam_tf.load_tokenizer(path).tokenize(["a text"]).',
    ),
    (
        "AutoModel TFAutoModel BertModel TFBertModel BertBackbone",
        "Write bertfam_tf.load_backbone(path).",
    ),
    (
        "AutoModelForSequenceClassification TFAutoModelForSequenceClassification "
        "BertForSequenceClassification TFBertForSequenceClassification BertTextClassifier",
        'Write bertfam_tf.TextClassifier.from_pretrained(path, labels=["negative", "positive"]).',
    ),
    (
        "SetFitModel SetFitTrainer",
        "Write bertfam_tf.FewShotClassifier.from_pretrained(path, "
        'labels=["negative", "positive"]).fit(texts, labels).',
    ),
    (
        "pipeline",
        "Write bertfam_tf.TextClassifier.from_pretrained(path).predict(texts); MaskedLM, "
        "TokenTagger, SpanQA, TextEmbedder, Reranker and others have the same methods.",
    ),
    (
        "SentenceTransformer",
        "Write bertfam_tf.TextEmbedder.from_pretrained(path).predict(texts), which returns "
        "vectors.",
    ),
    (
        "CrossEncoder",
        "Write bertfam_tf.Reranker.from_pretrained(path).predict([(query, document)]).",
    ),
    ("SparseEncoder", "Write bertfam_tf.SparseEmbedder.from_pretrained(path).predict(texts)."),
    (
        "similarity similarity_pairwise",
        "Write vectors = embedder.predict(texts), and vectors @ vectors.T.",
    ),
    # Methods of tokenizers.
    (
        "encode encode_plus batch_encode_plus decode batch_decode",
        'Write tokenizer.tokenize(["a text"]) for token ids, and tokenizer.detokenize(ids) for '
        "text; bertfam_tf.TextPreprocessor packs texts for a backbone.",
    ),
    ("convert_ids_to_tokens", "Write tokenizer.id_to_token(ids)."),
    ("convert_tokens_to_ids", "Write tokenizer.token_to_id(token)."),
)
_HINTS = {name: line for names, line in _LINES for name in names.split()}


def hint(names: str | Iterable[str]) -> str:
    """Returns a space and the line that works here, for the first name with one; or ``""``.

    Args:
        names: one name, or several.
    """
    for name in [names] if isinstance(names, str) else names:
        if name in _HINTS:
            return f" {_HINTS[name]}"
    return ""


class Hinted:
    """Adds the line that works here to the error for an attribute of another library's class."""

    if not TYPE_CHECKING:  # which would accept any attribute

        def __getattr__(self, name: str) -> Any:
            text = f"{type(self).__name__!r} object has no attribute {name!r}"
            line = hint(name)
            raise AttributeError(f"{text}.{line}" if line else text, name=name, obj=self)
