"""The architectures of real_models.py: how each module, and each of its inputs, is made.

An entry of MODELS is (build, make_input...): build() gives the module, whose forward takes the inputs and returns
the loss; each make_input(generator) gives an input. Rows are the first axis of every input, unless the module says
otherwise by its attribute rows_axis. The entries of TORCH_SCRIPT are exported by the TorchScript exporter, those of
TRAINING_MODE in training mode (without dropout: PyTorch's masks are others).
"""
import math

import torch
from torch import nn
from torch.nn import functional

ROWS = 8
TOKENS = 16
WORDS = 256
CLASSES = 10


class Classifier(nn.Module):
    """A module and its loss: cross-entropy of its logits."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x, labels):
        out = self.module(x)
        logits = getattr(out, "logits", out)
        return functional.cross_entropy(logits.flatten(0, -2), labels.flatten())


class LanguageModel(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x, labels):
        return self.module(input_ids=x, labels=labels).loss


class WithLabels(nn.Module):
    """A module of transformers that takes an input and labels, and makes the loss."""

    def __init__(self, module, x, **options):
        super().__init__()
        self.module, self.x, self.options = module, x, options

    def forward(self, x, labels):
        return self.module(**{self.x: x}, labels=labels, **self.options).loss


class Contrastive(nn.Module):
    """CLIP: every text is compared with every image of the batch."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, words, images):
        return self.module(input_ids=words, pixel_values=images, return_loss=True).loss


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.table = nn.Embedding(WORDS, 32)
        self.cells = kind(32, 48, batch_first=True)
        self.head = nn.Linear(48, WORDS)

    def forward(self, x):
        return self.head(self.cells(self.table(x))[0])


class Perceptron(nn.Module):
    """Linear on three axes: the exporter's optimizer transposes its weights."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.LayerNorm(48), nn.Linear(48, 48), nn.ReLU(),
                                    nn.Linear(48, CLASSES))

    def forward(self, x):
        return self.layers(x)


class UNet(nn.Module):
    """Segmentation: two levels down, two up, skips concatenated; the loss is the cross-entropy of every pixel."""

    def __init__(self, norm, up):
        super().__init__()

        def block(inner, outer):
            return nn.Sequential(nn.Conv2d(inner, outer, 3, padding=1), norm(outer), nn.ReLU(),
                                 nn.Conv2d(outer, outer, 3, padding=1), norm(outer), nn.ReLU())

        self.down = nn.ModuleList([block(3, 16), block(16, 32)])
        self.bottom = block(32, 64)
        self.up = nn.ModuleList([up(64, 32), up(32, 16)])
        self.join = nn.ModuleList([block(64, 32), block(32, 16)])
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Conv2d(16, CLASSES, 1)

    def forward(self, x, labels):
        skips = []
        for down in self.down:
            x = down(x)
            skips.append(x)
            x = self.pool(x)
        x = self.bottom(x)
        for up, join in zip(self.up, self.join):
            x = join(torch.cat([skips.pop(), up(x)], dim=1))
        return functional.cross_entropy(self.head(x), labels)


def group_norm(channels):
    return nn.GroupNorm(4, channels)


def transposed(inner, outer):
    return nn.ConvTranspose2d(inner, outer, 2, stride=2)


def upsampled(mode, **options):
    return lambda inner, outer: nn.Sequential(nn.Upsample(scale_factor=2, mode=mode, **options),
                                              nn.Conv2d(inner, outer, 3, padding=1))


class Dlrm(nn.Module):
    """Click prediction: bags of categories and dense features, their products with each other, a perceptron."""

    def __init__(self, bags=3, rows=100, width=16, dense=13, mode="sum"):
        super().__init__()
        self.tables = nn.ModuleList([nn.EmbeddingBag(rows, width, mode=mode) for _ in range(bags)])
        self.bottom = nn.Sequential(nn.Linear(dense, 32), nn.ReLU(), nn.Linear(32, width), nn.ReLU())
        pairs = bags * (bags + 1) // 2
        self.top = nn.Sequential(nn.Linear(width + pairs, 32), nn.ReLU(), nn.Linear(32, 1))
        first, second = torch.tril_indices(bags + 1, bags + 1, offset=-1)
        self.register_buffer("first", first)
        self.register_buffer("second", second)

    def bag(self, table, words):
        return table(words)

    def forward(self, dense, words, clicks):
        low = self.bottom(dense)
        rows = torch.stack([low, *(self.bag(table, words[:, i]) for i, table in enumerate(self.tables))], dim=1)
        products = torch.bmm(rows, rows.transpose(1, 2))[:, self.first, self.second]
        score = self.top(torch.cat([low, products], dim=1)).squeeze(1)
        return functional.binary_cross_entropy_with_logits(score, clicks)


class Graph(nn.Module):
    """Two layers of a graph network: messages along edges, the same in every example, summed by index_add."""

    def __init__(self, nodes=12, edges=30, width=32, inner=8):
        super().__init__()
        generator = torch.Generator().manual_seed(2)
        self.register_buffer("source", torch.randint(0, nodes, (edges,), generator=generator))
        self.register_buffer("target", torch.randint(0, nodes, (edges,), generator=generator))
        self.message = nn.ModuleList([nn.Linear(inner, width), nn.Linear(width, width)])
        self.own = nn.ModuleList([nn.Linear(inner, width), nn.Linear(width, width)])
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x):
        for message, own in zip(self.message, self.own):
            kept = own(x)
            x = torch.relu(kept.index_add(1, self.target, message(x[:, self.source])))
        return self.head(x.mean(1))


class DiffusionBlock(nn.Module):
    """A block of DiT: attention and a perceptron, scaled, shifted and gated by the condition (adaLN)."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))
        self.condition = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x, c):
        shift1, scale1, gate1, shift2, scale2, gate2 = self.condition(c).unsqueeze(1).chunk(6, dim=2)
        y = self.norm1(x) * (1 + scale1) + shift1
        q, k, v = self.qkv(y).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        y = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + gate1 * self.out(y)
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class DiffusionTransformer(nn.Module):
    """Predicts the noise of an image: patches, time and class as the condition, blocks, patches again."""

    def __init__(self, width=64, heads=4, blocks=2, size=16, patch=4):
        super().__init__()
        self.patch, self.side, self.width = patch, size // patch, width
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.place = nn.Parameter(torch.randn(1, self.side**2, width) * 0.02)
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.kind = nn.Embedding(CLASSES, width)
        self.blocks = nn.ModuleList([DiffusionBlock(width, heads) for _ in range(blocks)])
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.condition = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))
        self.head = nn.Linear(width, patch * patch * 3)

    def waves(self, time):
        rates = torch.exp(-math.log(10000) * torch.arange(self.width // 2, dtype=torch.float32) / (self.width // 2))
        angles = time[:, None].float() * rates[None]
        return torch.cat([angles.cos(), angles.sin()], dim=1).to(self.head.weight.dtype)

    def forward(self, image, time, kind, noise):
        c = self.time(self.waves(time)) + self.kind(kind)
        x = self.patches(image).flatten(2).transpose(1, 2) + self.place
        for block in self.blocks:
            x = block(x, c)
        shift, scale = self.condition(c).unsqueeze(1).chunk(2, dim=2)
        x = self.head(self.norm(x) * (1 + scale) + shift)
        x = x.unflatten(1, (self.side, self.side)).unflatten(3, (self.patch, self.patch, 3))
        return functional.mse_loss(x.permute(0, 5, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3), noise)


class Translator(nn.Module):
    """torch.nn.Transformer as it comes: tokens are the first axis, rows of the batch the second. That the mask is
    causal must be said: finding it out depends on data, which PyTorch does not export."""

    rows_axis = 1

    def __init__(self):
        super().__init__()
        self.source, self.target = nn.Embedding(WORDS, 64), nn.Embedding(WORDS, 64)
        self.body = nn.Transformer(64, 4, num_encoder_layers=2, num_decoder_layers=2, dim_feedforward=128)
        self.head = nn.Linear(64, WORDS)

    def forward(self, x, y, labels):
        mask = nn.Transformer.generate_square_subsequent_mask(y.shape[0]).to(self.head.weight.dtype)
        logits = self.head(self.body(self.source(x), self.target(y), tgt_mask=mask, tgt_is_causal=True))
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


class Encoder(nn.Module):
    """torch.nn.TransformerEncoder over tokens, the mean of its outputs classified."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(WORDS, 64)
        layer = nn.TransformerEncoderLayer(64, 4, dim_feedforward=128, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(64, CLASSES)

    def forward(self, x):
        return self.head(self.body(self.table(x)).mean(1))


class Experts(nn.Module):
    """A mixture of experts: every token takes its best two, weighed by the gate; every expert sees every token."""

    def __init__(self, width=32, experts=4):
        super().__init__()
        self.table = nn.Embedding(WORDS, width)
        self.gate = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList([nn.Sequential(nn.Linear(width, 64), nn.SiLU(), nn.Linear(64, width))
                                      for _ in range(experts)])
        self.head = nn.Linear(width, WORDS)

    def forward(self, x):
        x = self.table(x)
        scores = self.gate(x)
        best, chosen = scores.topk(2, dim=-1)
        weights = torch.zeros_like(scores).scatter(-1, chosen, best.softmax(-1))
        y = torch.stack([expert(x) for expert in self.experts], dim=-2)
        return self.head(x + (y * weights.unsqueeze(-1)).sum(-2))


class Letters(nn.Module):
    """A character CNN: windows of three widths, the largest of each channel, a classification."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(WORDS, 16)
        self.windows = nn.ModuleList([nn.Conv1d(16, 24, size) for size in (3, 4, 5)])
        self.head = nn.Linear(72, CLASSES)

    def forward(self, x):
        x = self.table(x).transpose(1, 2)
        return self.head(torch.cat([torch.relu(window(x)).amax(2) for window in self.windows], dim=1))


EAGER = dict(attn_implementation="eager")  # where PyTorch does not export transformers' default, sdpa


def numbers(*shape):
    return lambda generator: torch.randn(ROWS, *shape, generator=generator)


def integers(*shape, below=CLASSES):
    return lambda generator: torch.randint(0, below, (ROWS, *shape), generator=generator)


def chances(generator):
    return torch.randint(0, 2, (ROWS,), generator=generator).float()


def columns(generator):
    """Words with the tokens first."""
    return torch.randint(0, WORDS, (TOKENS, ROWS), generator=generator)


words = integers(TOKENS, below=WORDS)


def of_transformers(name, **options):
    """The configuration of a kind, and its module."""
    import transformers
    kind, head = name.split(":")
    return getattr(transformers, kind + head)(getattr(transformers, kind + "Config")(**options))


def causal(name, **options):
    """A decoder of transformers: two small layers."""
    small = dict(vocab_size=WORDS, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, max_position_embeddings=64)
    return lambda: LanguageModel(of_transformers(name + ":ForCausalLM", **small, **options)), words, words


def gpt2():
    return LanguageModel(of_transformers("GPT2:LMHeadModel", vocab_size=WORDS, n_positions=64, n_embd=64, n_layer=2,
                                         n_head=4))


def encoder(name, **options):
    return (lambda: Classifier(of_transformers(name + ":ForSequenceClassification", num_labels=CLASSES, **options)),
            words, integers())


def vision(name, **options):
    return (lambda: Classifier(of_transformers(name + ":ForImageClassification", num_labels=CLASSES, **options)),
            numbers(3, 32, 32), integers())


def torchvision_model(name, size=64):
    def build():
        import torchvision
        return Classifier(getattr(torchvision.models, name)(num_classes=CLASSES))

    return build, numbers(3, size, size), integers()


def t5():
    return WithLabels(of_transformers("T5:ForConditionalGeneration", vocab_size=WORDS, d_model=64, d_kv=16, d_ff=128,
                                      num_layers=2, num_heads=4, decoder_start_token_id=0, **EAGER), "input_ids")


def whisper():
    return WithLabels(of_transformers(
        "Whisper:ForConditionalGeneration", vocab_size=WORDS, num_mel_bins=16, d_model=64, encoder_layers=2,
        decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=128,
        decoder_ffn_dim=128, max_source_positions=32, max_target_positions=32, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None),
        "input_features")


def clip():
    body = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
    return Contrastive(of_transformers(
        "CLIP:Model", text_config=dict(body, vocab_size=WORDS, max_position_embeddings=32, eos_token_id=2),
        vision_config=dict(body, image_size=32, patch_size=8), projection_dim=32))


def wav2vec2():
    return WithLabels(of_transformers(
        "Wav2Vec2:ForSequenceClassification", vocab_size=32, hidden_size=64, num_hidden_layers=2,
        num_attention_heads=4, intermediate_size=128, conv_dim=(32, 32, 32), conv_stride=(5, 2, 2),
        conv_kernel=(10, 3, 2), num_feat_extract_layers=3, num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4, classifier_proj_size=32, num_labels=CLASSES), "input_values")


def mixer():
    import timm
    return Classifier(timm.models.mlp_mixer.MlpMixer(num_classes=CLASSES, img_size=32, patch_size=8, num_blocks=2,
                                                     embed_dim=64))


SMALL = dict(vocab_size=WORDS, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
             max_position_embeddings=64)
VIT = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, image_size=32,
           patch_size=8)
SEGMENTATION = (numbers(3, 32, 32), integers(32, 32))
DLRM = (numbers(13), integers(3, 5, below=100), chances)
MODELS = {
    "Linear, 3 axes": (lambda: Classifier(Perceptron()), numbers(6, 24), integers(6)),
    "GPT-2": (gpt2, words, words),
    "Llama": causal("Llama"),
    "Mistral": causal("Mistral"),
    "Mixtral": causal("Mixtral", num_local_experts=4, experts_implementation="batched_mm"),
    "Qwen2": causal("Qwen2"),
    "GPT-NeoX": causal("GPTNeoX"),
    "Gemma": causal("Gemma", head_dim=16),
    "Phi": causal("Phi"),
    "Mixture of experts": (lambda: Classifier(Experts()), words, words),
    "T5": (t5, words, words),
    "nn.Transformer": (Translator, columns, columns, columns),
    "nn.TransformerEncoder": (lambda: Classifier(Encoder()), words, integers()),
    "BERT": encoder("Bert", **SMALL),
    "RoBERTa": encoder("Roberta", **SMALL),
    "DistilBERT": encoder("DistilBert", vocab_size=WORDS, dim=64, hidden_dim=128, n_layers=2, n_heads=4,
                          max_position_embeddings=64),
    "Character CNN": (lambda: Classifier(Letters()), words, integers()),
    "LSTM": (lambda: Classifier(Recurrent(nn.LSTM)), words, words),
    "GRU": (lambda: Classifier(Recurrent(nn.GRU)), words, words),
    "Whisper": (whisper, numbers(16, 64), words),
    "wav2vec2": (wav2vec2, numbers(800), integers()),
    "ViT": vision("ViT", **VIT),
    "DeiT": vision("DeiT", **VIT),
    "Swin, transformers": vision("Swin", image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4],
                                 window_size=4, **EAGER),
    "Swin, torchvision": torchvision_model("swin_t"),
    "CLIP": (clip, words, numbers(3, 32, 32)),
    "MLP-Mixer": (mixer, numbers(3, 32, 32), integers()),
    "DiT": (DiffusionTransformer, numbers(3, 16, 16), integers(below=1000), integers(), numbers(3, 16, 16)),
    "ConvNeXt": vision("ConvNext", hidden_sizes=[16, 32, 64, 64], depths=[1, 1, 2, 1], image_size=32),
    "ResNet-18": torchvision_model("resnet18"),
    "MobileNetV3": torchvision_model("mobilenet_v3_small"),
    "EfficientNet": torchvision_model("efficientnet_b0"),
    "DenseNet": torchvision_model("densenet121"),
    "SqueezeNet": torchvision_model("squeezenet1_1"),
    "U-Net, BatchNorm, ConvTranspose": (lambda: UNet(nn.BatchNorm2d, transposed), *SEGMENTATION),
    "U-Net, GroupNorm, nearest": (lambda: UNet(group_norm, upsampled("nearest")), *SEGMENTATION),
    "U-Net, GroupNorm, bilinear": (lambda: UNet(group_norm, upsampled("bilinear")), *SEGMENTATION),
    "DLRM, EmbeddingBag": (Dlrm, *DLRM),
    "Graph network, index_add": (lambda: Classifier(Graph()), numbers(12, 8), integers()),
}
TORCH_SCRIPT = {name + ", TorchScript": MODELS[name] for name in ("Linear, 3 axes", "ResNet-18", "GPT-2", "BERT")}
TRAINING_MODE = {name + ", training mode": MODELS[name] for name in ("ResNet-18", "U-Net, BatchNorm, ConvTranspose")}
