"""Train a small transformer to tell praise from complaint, export it to ONNX and register the folder with ClearML.

A model of the Hugging Face hub takes the same way: load it with ``from_pretrained`` instead of training one.
"""

import shutil
from pathlib import Path

import torch
from clearml import OutputModel, Task
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

PRAISE = "a wonderful film|great acting and a great story|i loved it|simply wonderful|what a great evening|i laughed"
COMPLAINT = "a boring film|bad acting and a bad story|i hated it|simply awful|what a bad evening|i fell asleep"

task = Task.init(project_name="serving examples", task_name="train huggingface", auto_connect_frameworks=False)
texts = PRAISE.split("|") + COMPLAINT.split("|")
labels = torch.tensor([1] * len(PRAISE.split("|")) + [0] * len(COMPLAINT.split("|")))

words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *sorted({word for text in texts for word in text.split()})]
fast = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
fast.normalizer = normalizers.BertNormalizer()
fast.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
fast.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=fast, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
)

torch.manual_seed(0)
model = BertForSequenceClassification(BertConfig(
    vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
    max_position_embeddings=64, id2label={0: "COMPLAINT", 1: "PRAISE"}, label2id={"COMPLAINT": 0, "PRAISE": 1},
    hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
))  # fmt: skip
batch = tokenizer(texts, padding=True, return_tensors="pt")
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for _ in range(60):
    optimizer.zero_grad()
    loss = model(**batch, labels=labels).loss
    loss.backward()
    optimizer.step()
print(f"loss after training: {loss.item():.4f}")

folder = Path("huggingface-model")
shutil.rmtree(folder, ignore_errors=True)
model.eval().save_pretrained(folder)
tokenizer.save_pretrained(folder)
(folder / "model.safetensors").unlink()  # Triton runs the ONNX file


class Logits(torch.nn.Module):
    """The model with one named output."""

    def __init__(self):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask):
        return self.model(input_ids=input_ids, attention_mask=attention_mask).logits


torch.onnx.export(
    Logits(), (), str(folder / "model.onnx"),
    kwargs={"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]},
    input_names=["input_ids", "attention_mask"], output_names=["logits"],
    dynamic_shapes={name: {0: "batch", 1: "sequence"} for name in ("input_ids", "attention_mask")},
    dynamo=True, external_data=False, verbose=False,
)  # fmt: skip
OutputModel(task=task, name="huggingface example", framework="ONNX").update_weights_package(
    weights_path=str(folder), auto_delete_file=False, async_enable=False
)
task.close()
