"""llama.cpp's own server on a Qwen3 checkpoint: `llama_cpp_serve.py FOLDER GGUF PORT` writes weights and byte-level BPE tokenizer as
GGUF, in float32, and serves them under the folder's name until it is killed, with keys and values in float32 too and without flash
attention, which rounds. It runs in the venv of llama_cpp_server.py, without anything of ours. xllamacpp is llama.cpp's server, in C++, as a
module of Python.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import gguf
import xllamacpp
from safetensors.numpy import load_file

MOST_TOKENS = 2048


def write_gguf(folder: Path, path: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    special = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    ids = tokenizer["model"]["vocab"] | special
    tokens = sorted(ids, key=ids.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)
    writer.add_chat_template((folder / "chat_template.jinja").read_text())
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, config["num_hidden_layers"])
    for name, weight in load_file(folder / "model.safetensors").items():
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    folder, path, port = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    write_gguf(folder, path)
    settings = xllamacpp.CommonParams()
    settings.model.path = str(path)
    settings.model_alias = {str(folder)}
    settings.hostnames, settings.port = ["127.0.0.1"], port
    settings.n_ctx, settings.n_parallel = MOST_TOKENS, 2
    settings.cache_type_k = settings.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    settings.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(settings)
    print(server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
