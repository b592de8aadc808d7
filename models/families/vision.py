"""Vision-language models: chats with screenshots as tokens and vision tensors, and several samples' vision tensors as one batch.

Two families: those whose image processor cuts a picture into as many patches as its size asks for (Qwen2-VL, Qwen2.5-VL, Qwen3-VL), and
those that cut it into tiles of one size (Idefics3, SmolVLM). A picture's bounds, which decide how many tokens it costs, are settings of
the checkpoint's image processor (`size` in preprocessor_config.json). Text around the pictures is models/families/templates.py's business.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from PIL import Image
from torch import Tensor

from agent.policy.policy import Message
from models.checkpoints.model_files import PROCESSOR_FILES
from models.families.chat import ChatCodec, EncodedChat, Shown, pieces_of
from models.families.templates import Part, TemplateCodec, Tools
from warehouse.core.errors import ModelError, UnreadablePicture
from warehouse.storage.screenshots import pictures

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

PATCH_FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
TILE_FAMILIES = ("idefics3", "smolvlm")
ReadImage = Callable[[str], bytes]
"""The bytes of a screenshot by its id."""
PixelLoader = Callable[[Sequence[str]], Mapping[str, Tensor]]
"""The vision tensors of one conversation that shows these screenshots; empty for none."""
KEPT_PIXEL_BYTES = 2 * 2**30
"""Of vision tensors that a loader keeps; the others are made at each call."""


class ImageReader(Protocol):
    """One family's way from pictures to placeholder tokens and tensors."""

    placeholder: str
    """What the chat template writes for a picture; a token of the tokenizer."""

    def expand(self, width_px: int, height_px: int) -> str:
        """What stands in the prompt instead of the placeholder, one token for each feature of a picture of this size."""
        ...

    def tensors(self, pictures: Sequence[Image.Image]) -> dict[str, Tensor]:
        """The model's vision inputs for the pictures of one conversation, in order."""
        ...

    def save_pretrained(self, save_directory: Path) -> object: ...


class PatchReader:
    """Qwen2-VL's: each picture a grid of patches, `merge_size` squared of which are one token. The tensors of several conversations are
    one another's continuation: `pixel_values` (patches, patch values), `image_grid_thw` (pictures, 3)."""

    placeholder = "<|image_pad|>"

    def __init__(self, processor: Any) -> None:
        self._processor = processor

    def expand(self, width_px: int, height_px: int) -> str:
        num_patches = int(self._processor.get_number_of_image_patches(height_px, width_px, {}))
        return self.placeholder * (num_patches // int(self._processor.merge_size) ** 2)

    def tensors(self, pictures: Sequence[Image.Image]) -> dict[str, Tensor]:
        found = self._processor(images=list(pictures), return_tensors="pt")
        return {name: found[name] for name in ("pixel_values", "image_grid_thw")}

    def save_pretrained(self, save_directory: Path) -> object:
        return self._processor.save_pretrained(save_directory)


class TileReader:
    """Idefics3's: a picture is cut into tiles of one size, with a small copy of the whole as the last. `pixel_values` is
    (1, tiles, 3, height, width), `pixel_attention_mask` (1, tiles, height, width)."""

    placeholder = "<image>"

    def __init__(self, processor: Any) -> None:
        self._processor = processor

    def expand(self, width_px: int, height_px: int) -> str:
        _, rows, columns = self._processor.image_processor.get_number_of_image_patches(height_px, width_px, {})
        return str(self._processor.replace_image_token({"rows": [[rows]], "cols": [[columns]]}, 0))

    def tensors(self, pictures: Sequence[Image.Image]) -> dict[str, Tensor]:
        found = self._processor.image_processor(images=[list(pictures)], return_tensors="pt")
        return {name: found[name] for name in ("pixel_values", "pixel_attention_mask")}

    def save_pretrained(self, save_directory: Path) -> object:
        return self._processor.save_pretrained(save_directory)


def image_content(message: Message, texts: Sequence[str]) -> Any:
    """A message's content as the templates of vision-language models read it: its pictures and texts, in their order."""
    waiting, pieces = list(texts), pieces_of(message)
    content = [{"type": "image"} if isinstance(piece, Shown) else {"type": "text", "text": waiting.pop(0)} for piece in pieces]
    return content or ""


class VisionCodec(TemplateCodec):
    """The ChatCodec of a vision-language model. Pictures stand where messages show them, as many tokens as the size of each asks for."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        reader: ImageReader,
        eos_token_ids: Sequence[int] = (),
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        """`files` are the processor's, by name, to be saved as they were read; None lets the reader write its own."""
        self._reader, self._files = reader, files
        super().__init__(tokenizer, eos_token_ids, content=image_content)

    def encode(
        self, messages: Sequence[Message], images: Mapping[str, bytes] | None = None, *, prompt_loss_weight: float = 1.0, tools: Tools = ()
    ) -> EncodedChat:
        pictures = [open_picture(name, images or {}) for name in screenshot_ids(messages)]
        token_ids, loss_weights = self._with_pictures(messages, [picture.size for picture in pictures], prompt_loss_weight, tools)
        return EncodedChat(token_ids=token_ids, loss_weights=loss_weights, vision=self._tensors(pictures) if pictures else {})

    def encode_tokens(
        self, messages: Sequence[Message], images: Mapping[str, bytes], *, prompt_loss_weight: float = 1.0
    ) -> tuple[list[int], list[float]]:
        """`encode` without the vision tensors: of the images only the sizes are read."""
        sizes = [open_picture(name, images).size for name in screenshot_ids(messages)]
        return self._with_pictures(messages, sizes, prompt_loss_weight)

    def vision(self, names: Sequence[str], images: Mapping[str, bytes]) -> dict[str, Tensor]:
        """The vision tensors of a conversation that shows these screenshots, in order; empty without any."""
        return self._tensors([open_picture(name, images) for name in names]) if names else {}

    def _tensors(self, pictures: Sequence[Image.Image]) -> dict[str, Tensor]:
        try:
            return self._reader.tensors(pictures)
        except ValueError as error:  # of a picture that is too narrow, say
            sizes = ", ".join(f"{picture.width} x {picture.height}" for picture in pictures)
            raise ModelError(f"pictures of {sizes} pixels cannot be read: {error}") from error

    def save_pretrained(self, save_directory: Path) -> object:
        written = super().save_pretrained(save_directory)
        if self._files is None:
            return written, self._reader.save_pretrained(save_directory)
        for name, content in self._files.items():
            (save_directory / name).write_bytes(content)
        return written

    def _texts(self, message: Message) -> list[str]:
        return [piece for piece in pieces_of(message) if isinstance(piece, str)]

    def _parts(self, messages: Sequence[Message], arguments: Mapping[str, Any]) -> list[Part]:
        """Raises ModelError also for a template that moves pictures."""
        parts = super()._parts(messages, arguments)
        expected = [isinstance(piece, Shown) for message in messages for piece in pieces_of(message)]
        found = [
            is_picture
            for part in parts
            for is_picture in ([False] if part.message is not None else [True] * part.text.count(self._reader.placeholder))
        ]
        if found != expected and sum(found) == sum(expected):
            raise ModelError(
                "the chat template moves a message's pictures to another place: put them where the template does, which for most is before "
                "the text"
            )
        return parts

    def _with_pictures(
        self, messages: Sequence[Message], sizes: Sequence[tuple[int, int]], prompt_loss_weight: float, tools: Tools = ()
    ) -> tuple[list[int], list[float]]:
        waiting = list(sizes)

        def expand(written: str) -> str:
            def one(match: re.Match[str]) -> str:
                if not waiting:
                    raise ModelError(f"the chat template writes more {self._reader.placeholder} than the messages have screenshots")
                width_px, height_px = waiting.pop(0)
                try:
                    return self._reader.expand(width_px, height_px)
                except ValueError as error:  # of a picture that is too narrow, say
                    raise ModelError(f"a picture of {width_px} x {height_px} pixels cannot be read: {error}") from error

            return re.sub(re.escape(self._reader.placeholder), one, written)

        ids, weights = self.tokens(messages, prompt_loss_weight=prompt_loss_weight, expand=expand, tools=tools)
        if waiting:
            raise ModelError(f"the chat template writes no {self._reader.placeholder} for {len(waiting)} of {len(sizes)} screenshots")
        return ids, weights


def screenshot_ids(messages: Sequence[Message]) -> list[str]:
    """The screenshots that messages name, in order, each as often as it is shown."""
    return [piece.screenshot_id for message in messages for piece in pieces_of(message) if isinstance(piece, Shown)]


def open_picture(name: str, images: Mapping[str, bytes]) -> Image.Image:
    """A screenshot as an RGB picture. Raises ModelError when it is missing or unreadable."""
    if name not in images:
        raise ModelError(f"the messages name screenshot {name}, but its image is missing: collect with screenshots on")
    try:
        return pictures.decoded(images[name])
    except UnreadablePicture as error:
        raise ModelError(f"screenshot {name} ({len(images[name])} bytes) is not a readable image: {error}") from error


def read_images(names: Sequence[str], read_image: ReadImage | None) -> dict[str, bytes]:
    """The named screenshots. Raises ModelError when there are some and no way to read them."""
    if names and read_image is None:
        raise ModelError(f"messages show screenshot {names[0]}, but there is no reader for images: pass `read_image`")
    return {name: read_image(name) for name in names} if read_image else {}


def pixel_loader(codec: ChatCodec, read_image: ReadImage | None) -> PixelLoader | None:
    """What makes the vision tensors of samples for this codec, and keeps them: training asks for the same ones again and again. None where
    the codec cannot see."""
    return KeptPixels(codec, read_image) if isinstance(codec, VisionCodec) else None


class KeptPixels:
    """A PixelLoader. What was made first is kept, up to `max_bytes`: samples come in another order in each pass, where leaving out what was
    used longest ago would hardly ever find one. Callers must not write into the tensors."""

    def __init__(self, codec: VisionCodec, read_image: ReadImage | None, max_bytes: int = KEPT_PIXEL_BYTES) -> None:
        self._codec, self._read_image, self._bytes_left = codec, read_image, max_bytes
        self._kept: dict[tuple[str, ...], Mapping[str, Tensor]] = {}

    def __call__(self, names: Sequence[str]) -> Mapping[str, Tensor]:
        key = tuple(names)
        if key in self._kept:
            return self._kept[key]
        made = self._codec.vision(names, read_images(names, self._read_image))
        size = sum(tensor.nbytes for tensor in made.values())
        if size <= self._bytes_left:
            self._kept[key] = made
            self._bytes_left -= size
        return made


def collate_vision(rows: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The vision tensors of several conversations as one batch's, in the order of its rows; rows without images may be among them.

    Patches continue one another. Tiles are padded with empty ones to the row that has most (the model leaves empty tiles out) and to the
    largest height and width, with the mask 0 there; a row without images is all empty tiles.
    """
    filled = [row for row in rows if row]
    if not filled:
        return {}
    if "image_grid_thw" in filled[0]:
        return {name: torch.cat([row[name] for row in filled]) for name in filled[0]}
    shape = [max(row["pixel_values"].shape[dim] for row in filled) for dim in (1, 3, 4)]
    pixels = filled[0]["pixel_values"].new_zeros(len(rows), shape[0], 3, *shape[1:])
    mask = filled[0]["pixel_attention_mask"].new_zeros(len(rows), *shape)
    for index, row in enumerate(rows):
        if row:
            _, tiles, _, height, width = row["pixel_values"].shape
            pixels[index, :tiles, :, :height, :width] = row["pixel_values"][0]
            mask[index, :tiles, :height, :width] = row["pixel_attention_mask"][0]
    return {"pixel_values": pixels, "pixel_attention_mask": mask}


def vision_inputs(model: PreTrainedModel, input_ids_BT: Tensor, vision: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Keyword arguments of a forward pass over `input_ids_BT` with these vision tensors, on the model's device: Qwen's models also want
    to know which tokens are an image's. Empty for text."""
    if not vision:
        return {}
    inputs = {name: tensor.to(input_ids_BT.device) for name, tensor in vision.items()}
    if "image_grid_thw" in inputs:
        own: Any = getattr(model, "module", model)  # DeepSpeed's engine around it has a `config` of its own
        inputs["mm_token_type_ids"] = (input_ids_BT == own.config.image_token_id).int()
    return inputs


def load_vision_codec(folder: Path, model_type: str, eos_token_ids: Sequence[int] = ()) -> VisionCodec:
    """The codec of a vision-language checkpoint. Raises ModelError for a family that is not known."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    files = {name: (folder / name).read_bytes() for name in PROCESSOR_FILES if (folder / name).is_file()}
    return VisionCodec(tokenizer, _reader(folder, model_type, tokenizer), eos_token_ids, files)


def _reader(folder: Path, model_type: str, tokenizer: Any) -> ImageReader:
    if model_type in PATCH_FAMILIES:
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        return PatchReader(Qwen2VLImageProcessorPil.from_pretrained(folder))
    if model_type in TILE_FAMILIES:
        # Idefics3's processor, which SmolVLM's differs from in how it reads videos only. Put together by hand: AutoProcessor wants
        # classes for videos, which need packages beyond ours.
        from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
        from transformers.models.idefics3.processing_idefics3 import Idefics3Processor

        described, _ = Idefics3Processor.get_processor_dict(folder)
        images, length = Idefics3ImageProcessorPil.from_pretrained(folder), int(described.get("image_seq_len", 169))
        return TileReader(Idefics3Processor(images, tokenizer, image_seq_len=length, chat_template=tokenizer.chat_template))
    raise ModelError(
        f"{folder} has a vision-language model of type {model_type!r}; known are {', '.join((*PATCH_FAMILIES, *TILE_FAMILIES))}: "
        "serve it by HTTP, or add a reader for its images to models/families/vision.py"
    )
