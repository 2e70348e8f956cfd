"""Further architectures of real_models.py: those that nobody had in mind when operators and rules were written. Of the
form of real_modules.MODELS; each is tried with one plan."""
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from real_modules import (CLASSES, ROWS, SMALL, TOKENS, VIT, WORDS, Classifier, LanguageModel, WithLabels, causal,
                          chances, encoder, integers, numbers, of_transformers, torchvision_model, vision, words)


class Reconstruction(nn.Module):
    def __init__(self, module, loss):
        super().__init__()
        self.module, self.loss = module, loss

    def forward(self, x, target):
        return self.loss(self.module(x), target)


class Pixels(nn.Module):
    """Scores for each pixel, enlarged to the labels' size."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x, labels):
        out = self.module(x)
        out = out.logits if hasattr(out, "logits") else out["out"]
        out = functional.interpolate(out, labels.shape[-2:], mode="bilinear", align_corners=False)
        return functional.cross_entropy(out, labels)


class Points(nn.Module):
    """PointNet: every point alone, then the largest of each channel."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(3, 32, 1), nn.BatchNorm1d(32), nn.ReLU(), nn.Conv1d(32, 64, 1),
                                  nn.BatchNorm1d(64), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, CLASSES))

    def forward(self, x):
        return self.head(self.body(x).max(dim=2)[0])


class CausalConvolutions(nn.Module):
    """Dilated convolutions with weight normalisation, padded at the left."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(WORDS, 32)
        self.layers = nn.ModuleList([parametrizations.weight_norm(nn.Conv1d(32, 32, 3, dilation=2**i))
                                     for i in range(3)])
        self.head = nn.Linear(32, WORDS)

    def forward(self, x):
        x = self.table(x).transpose(1, 2)
        for i, layer in enumerate(self.layers):
            x = x + torch.relu(layer(functional.pad(x, (2**(i + 1), 0))))
        return self.head(x.transpose(1, 2))


class Variational(nn.Module):
    """A variational autoencoder whose noise is an input: reconstruction and divergence."""

    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.ELU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ELU(),
                                  nn.Flatten())
        self.mean, self.log = nn.Linear(256, 8), nn.Linear(256, 8)
        self.up = nn.Sequential(nn.Linear(8, 256), nn.ELU(), nn.Unflatten(1, (16, 4, 4)),
                                nn.ConvTranspose2d(16, 8, 3, 2, 1, output_padding=1), nn.ELU(),
                                nn.ConvTranspose2d(8, 1, 3, 2, 1, output_padding=1), nn.Sigmoid())

    def forward(self, x, noise):
        h = self.down(x)
        mean, log = self.mean(h), self.log(h)
        y = self.up(mean + noise * (0.5 * log).exp())
        divergence = -0.5 * (1 + log - mean.pow(2) - log.exp()).sum(1).mean()
        return functional.binary_cross_entropy(y, torch.sigmoid(x)) + 0.01 * divergence


class Codes(nn.Module):
    """Vector quantisation: the nearest code goes on, its gradient straight through; codes and encoder approach
    each other, each with the other detached."""

    def __init__(self):
        super().__init__()
        self.down, self.up, self.book = nn.Linear(16, 8), nn.Linear(8, 16), nn.Embedding(32, 8)

    def forward(self, x, y):
        z = self.down(x)
        distance = z.pow(2).sum(-1, keepdim=True) - 2 * z @ self.book.weight.t() + self.book.weight.pow(2).sum(-1)
        q = self.book(distance.argmin(-1))
        commit = functional.mse_loss(z, q.detach()) + functional.mse_loss(q, z.detach())
        return functional.mse_loss(self.up(z + (q - z).detach()), y) + commit


class GraphAttention(nn.Module):
    """A layer of graph attention: a softmax over the neighbours in a fixed graph."""

    def __init__(self, nodes=12, width=16):
        super().__init__()
        generator = torch.Generator().manual_seed(2)
        self.register_buffer("absent", torch.rand(nodes, nodes, generator=generator) < 0.6)
        self.absent.fill_diagonal_(False)
        self.value = nn.Linear(8, width)
        self.left, self.right = nn.Parameter(torch.randn(width)), nn.Parameter(torch.randn(width))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x):
        v = self.value(x)
        scores = functional.leaky_relu((v @ self.left).unsqueeze(2) + (v @ self.right).unsqueeze(1), 0.2)
        return self.head(functional.elu(scores.masked_fill(self.absent, float("-inf")).softmax(-1) @ v).mean(1))


class Waves(nn.Module):
    """SIREN: sines between linear layers."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 32), nn.Linear(32, 32), nn.Linear(32, 1)])

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = torch.sin(30 * layer(x))
        return self.layers[-1](x)


class BothWays(nn.Module):
    """Two layers of LSTM in both directions, their last states classified."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(WORDS, 16)
        self.cells = nn.LSTM(16, 24, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(48, CLASSES)

    def forward(self, x):
        _, (h, _) = self.cells(self.table(x))
        return self.head(torch.cat([h[-2], h[-1]], 1))


class Cells(nn.Module):
    """A GRUCell in a loop of Python, attention over its states by einsum."""

    def __init__(self):
        super().__init__()
        self.table, self.cell = nn.Embedding(WORDS, 16), nn.GRUCell(16, 24)
        self.query, self.head = nn.Linear(24, 24), nn.Linear(48, CLASSES)

    def forward(self, x):
        x = self.table(x)
        h, states = x.new_zeros(x.shape[0], 24), []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            states.append(h)
        states = torch.stack(states, 1)
        weights = torch.einsum("bd,btd->bt", self.query(h), states).softmax(-1)
        return self.head(torch.cat([h, torch.einsum("bt,btd->bd", weights, states)], -1))


class Triplets(nn.Module):
    def __init__(self):
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8))

    def forward(self, anchor, near, far):
        anchor, near, far = (functional.normalize(self.tower(x), dim=-1) for x in (anchor, near, far))
        return functional.triplet_margin_loss(anchor, near, far)


class Factorization(nn.Module):
    """A factorization machine with a deep part, two tasks and a Huber loss."""

    def __init__(self):
        super().__init__()
        self.table, self.linear = nn.Embedding(100, 8), nn.Embedding(100, 1)
        self.deep = nn.Sequential(nn.Linear(24, 16), nn.Mish(), nn.Linear(16, 2), nn.Softplus())

    def forward(self, x, y):
        v = self.table(x)
        pairs = 0.5 * (v.sum(1).pow(2) - v.pow(2).sum(1)).sum(-1, keepdim=True)
        return functional.huber_loss(self.deep(v.flatten(1)) + pairs + self.linear(x).sum(1), y)


class Detector(nn.Module):
    """Detection on a grid: a focal loss for kinds, smooth L1 for boxes where there is an object."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.SiLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.SiLU())
        self.boxes, self.kinds = nn.Conv2d(32, 4, 1), nn.Conv2d(32, 3, 1)

    def forward(self, x, boxes, kinds):
        features = self.body(x)
        scores = self.kinds(features)
        entropy = functional.binary_cross_entropy_with_logits(scores, kinds, reduction="none")
        right = scores.sigmoid() * kinds + (1 - scores.sigmoid()) * (1 - kinds)
        there = kinds.amax(1, keepdim=True)
        distance = functional.smooth_l1_loss(self.boxes(features), boxes, reduction="none") * there
        return ((1 - right)**2 * entropy).mean() + distance.mean()


class Frequencies(nn.Module):
    """Tokens mixed by a Fourier transform."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(WORDS, 32), nn.Linear(32, CLASSES)
        self.mlp = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))

    def forward(self, x):
        x = self.table(x)
        x = x + torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real
        return self.head((x + self.mlp(x)).mean(1))


def set_transformer():
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
    return Classifier(nn.Sequential(nn.Linear(8, 32), layer, nn.Linear(32, CLASSES)))


def super_resolution():
    return Reconstruction(nn.Sequential(nn.Conv2d(1, 32, 5, padding=2), nn.PReLU(), nn.Conv2d(32, 4, 3, padding=1),
                                        nn.PixelShuffle(2)), functional.l1_loss)


def small_classifier():
    return Classifier(nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, CLASSES)))


def timm_model(name, size=64, **options):
    def build():
        import timm
        return Classifier(timm.create_model(name, num_classes=CLASSES, **options))

    return build, numbers(3, size, size), integers()


def decoder(name, **options):
    return lambda: LanguageModel(of_transformers(name, vocab_size=WORDS, **options)), words, words


def bloom():
    """Its GELU has a backward pass of its own (torch.autograd.Function), with a constant of ten digits; files do not
    have it."""
    module = LanguageModel(of_transformers("Bloom:ForCausalLM", vocab_size=WORDS, hidden_size=64, n_layer=2, n_head=4))
    module.float64_bound = 1e-7
    return module


def gemma3():
    import transformers
    config = transformers.Gemma3TextConfig(**SMALL, num_key_value_heads=2, head_dim=16)
    return LanguageModel(transformers.Gemma3ForCausalLM(config))


TRANSLATOR = dict(vocab_size=WORDS, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                  decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128, max_position_embeddings=64,
                  pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=2)


def translator(name):
    return (lambda: WithLabels(of_transformers(name, **TRANSLATOR), "input_ids")), words, words


def of_sound(name, x, shape, **options):
    return (lambda: WithLabels(of_transformers(name, num_labels=CLASSES, **options), x), numbers(*shape), integers())


def on_pixels(build, size=32):
    return lambda: Pixels(build()), numbers(3, size, size), integers(size, size)


def segformer():
    return of_transformers("Segformer:ForSemanticSegmentation", num_labels=CLASSES, hidden_sizes=[16, 32, 32, 64],
                           depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 2, 4], decoder_hidden_size=32)


def deeplab():
    import torchvision
    return torchvision.models.segmentation.deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None,
                                                                        num_classes=CLASSES)


def googlenet():
    import torchvision
    return Classifier(torchvision.models.googlenet(num_classes=CLASSES, aux_logits=False))


def video_resnet():
    import torchvision
    return Classifier(torchvision.models.video.r3d_18(num_classes=CLASSES))


def maxvit():
    import torchvision
    return Classifier(torchvision.models.MaxVit((64, 64), 16, 2, [16, 32], [1, 1], 16, 0.0, num_classes=CLASSES))


def multiple_choice():
    return WithLabels(of_transformers("Bert:ForMultipleChoice", **SMALL), "input_ids")


def detection():
    """Labels for each of the tokens that stand for objects."""
    return Classifier(of_transformers("Yolos:ForObjectDetection", num_labels=CLASSES - 1, num_detection_tokens=6,
                                      **(VIT | dict(image_size=[32, 32]))))


def video_classes():
    return WithLabels(of_transformers("VideoMAE:ForVideoClassification", num_labels=CLASSES, num_frames=4, **VIT),
                      "pixel_values")


class Scores(nn.Module):
    """Two classes, one score: squeeze() of all axes that are 1."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x, y):
        return functional.binary_cross_entropy_with_logits(self.layers(x).squeeze(), y)


LATENT = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
              num_key_value_heads=4, max_position_embeddings=64, q_lora_rank=16, kv_lora_rank=16,
              qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=16, n_routed_experts=4, num_experts_per_tok=2,
              moe_intermediate_size=32, n_group=2, topk_group=1, first_k_dense_replace=1)
SOUND = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128)
EXPERTS = dict(experts_implementation="batched_mm")
ROWS_OF_FOUR = dict(hidden_sizes=[16, 32, 32, 64], depths=[1, 1, 1, 1])
MORE = {
    "OPT": decoder("OPT:ForCausalLM", hidden_size=64, ffn_dim=128, num_hidden_layers=2, num_attention_heads=4,
                   max_position_embeddings=64, word_embed_proj_dim=64),
    "BLOOM": (bloom, words, words),
    "Falcon": decoder("Falcon:ForCausalLM", hidden_size=64, num_hidden_layers=2, num_attention_heads=4),
    "GPT-J": decoder("GPTJ:ForCausalLM", n_embd=64, n_layer=2, n_head=4, n_positions=64, rotary_dim=8),
    "GPT-BigCode": decoder("GPTBigCode:ForCausalLM", n_embd=64, n_layer=2, n_head=4, n_positions=64),
    "Qwen3": causal("Qwen3", head_dim=16),
    "Qwen2-MoE": causal("Qwen2Moe", num_experts=4, moe_intermediate_size=32, shared_expert_intermediate_size=32,
                        **EXPERTS),
    "Gemma 2": causal("Gemma2", head_dim=16),
    "Gemma 3": (gemma3, words, words),
    "OLMo 2": causal("Olmo2"),
    "Cohere": causal("Cohere"),
    "StableLM": causal("StableLm"),
    "Phi-3": causal("Phi3", pad_token_id=0),
    "Granite": causal("Granite"),
    "SmolLM3": causal("SmolLM3", pad_token_id=0),
    "GPT-OSS": causal("GptOss", head_dim=16, num_local_experts=4, **EXPERTS),
    "Mamba": decoder("Mamba:ForCausalLM", hidden_size=32, state_size=4, num_hidden_layers=2),
    "Mamba 2": decoder("Mamba2:ForCausalLM", hidden_size=32, state_size=4, num_hidden_layers=2, num_heads=4,
                       head_dim=16, n_groups=1, chunk_size=8),
    "BART": translator("Bart:ForConditionalGeneration"),
    "Pegasus": translator("Pegasus:ForConditionalGeneration"),
    "mBART": translator("MBart:ForConditionalGeneration"),
    "Marian": translator("Marian:MTModel"),
    "ALBERT": encoder("Albert", embedding_size=32, **SMALL),
    "ELECTRA": encoder("Electra", embedding_size=32, **SMALL),
    "DeBERTa-v2": encoder("DebertaV2", relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8,
                          **SMALL),
    "ModernBERT": encoder("ModernBert", pad_token_id=0, **SMALL),
    "MPNet": encoder("MPNet", **SMALL),
    "XLNet": encoder("XLNet", vocab_size=WORDS, d_model=64, n_layer=2, n_head=4, d_inner=128),
    "FNet": encoder("FNet", vocab_size=WORDS, hidden_size=64, intermediate_size=128, num_hidden_layers=2),
    "BERT, masked words": (lambda: WithLabels(of_transformers("Bert:ForMaskedLM", **SMALL), "input_ids"), words,
                           words),
    "BERT, tokens": (lambda: WithLabels(of_transformers("Bert:ForTokenClassification", num_labels=CLASSES, **SMALL),
                                        "input_ids"), words, integers(TOKENS)),
    "HuBERT": of_sound("Hubert:ForSequenceClassification", "input_values", (800,), vocab_size=32,
                       conv_dim=(32, 32, 32), conv_stride=(5, 2, 2), conv_kernel=(10, 3, 2),
                       num_feat_extract_layers=3, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4,
                       classifier_proj_size=32, **SOUND),
    "Audio spectrogram transformer": of_sound("AST:ForAudioClassification", "input_values", (32, 16), patch_size=8,
                                              frequency_stride=8, time_stride=8, max_length=32, num_mel_bins=16,
                                              **SOUND),
    "BEiT": vision("Beit", **VIT),
    "DINOv2": vision("Dinov2", hidden_size=64, num_hidden_layers=2, num_attention_heads=4, image_size=32,
                     patch_size=8),
    "SegFormer": on_pixels(segformer),
    "PoolFormer": vision("PoolFormer", **ROWS_OF_FOUR),
    "MobileViT": vision("MobileViT", image_size=32, hidden_sizes=[16, 24, 32],
                        neck_hidden_sizes=[8, 16, 16, 24, 32, 32, 32]),
    "RegNet, transformers": vision("RegNet", embedding_size=16, groups_width=8, **ROWS_OF_FOUR),
    "3D ResNet-18": (video_resnet, numbers(3, 4, 32, 32), integers()),
    "ShuffleNet": torchvision_model("shufflenet_v2_x0_5"),
    "GoogLeNet": (googlenet, numbers(3, 64, 64), integers()),
    "RegNet": torchvision_model("regnet_y_400mf"),
    "MNASNet": torchvision_model("mnasnet0_5"),
    "MaxViT": (maxvit, numbers(3, 64, 64), integers()),
    "DeepLabV3": on_pixels(deeplab, 64),
    "XCiT": timm_model("xcit_nano_12_p16_224", img_size=64),
    "CoAtNet": timm_model("coatnet_nano_rw_224", img_size=64),
    "GhostNet": timm_model("ghostnet_050"),
    "RepVGG": timm_model("repvgg_a0"),
    "NFNet": timm_model("nfnet_l0"),
    "gMLP": timm_model("gmlp_ti16_224", img_size=64),
    "PointNet": (lambda: Classifier(Points()), numbers(3, 40), integers()),
    "TCN, weight_norm": (lambda: Classifier(CausalConvolutions()), words, words),
    "Super-resolution, PixelShuffle": (super_resolution, numbers(1, 8, 8), numbers(1, 16, 16)),
    "VAE": (Variational, numbers(1, 16, 16), numbers(8)),
    "VQ-VAE": (Codes, numbers(16), numbers(16)),
    "Graph attention": (lambda: Classifier(GraphAttention()), numbers(12, 8), integers()),
    "SIREN": (lambda: Reconstruction(Waves(), functional.mse_loss), numbers(20, 2), numbers(20, 1)),
    "LSTM, both ways": (lambda: Classifier(BothWays()), words, integers()),
    "GRUCell, attention": (lambda: Classifier(Cells()), words, integers()),
    "Triplets": (Triplets, numbers(16), numbers(16), numbers(16)),
    "Factorization machine": (Factorization, integers(3, below=100), numbers(2)),
    "Detector, focal loss": (Detector, numbers(3, 16, 16), numbers(4, 4, 4),
                             lambda generator: torch.randint(0, 2, (ROWS, 3, 4, 4), generator=generator).float()),
    "Fourier features": (lambda: Classifier(Frequencies()), words, integers()),
    "MLP, BatchNorm1d": (small_classifier, numbers(16), integers()),
    "Set transformer": (set_transformer, numbers(12, 8), integers(12)),
    "DeepSeek-V3": decoder("DeepseekV3:ForCausalLM", **LATENT, **EXPERTS),
    "Qwen3-MoE": causal("Qwen3Moe", head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
                        **EXPERTS),
    "GLM": causal("Glm", head_dim=16, pad_token_id=0),
    "GPT-Neo": decoder("GPTNeo:ForCausalLM", hidden_size=64, num_layers=2, num_heads=4, window_size=6,
                       attention_types=[[["global", "local"], 1]], max_position_embeddings=64),
    "RWKV": decoder("Rwkv:ForCausalLM", hidden_size=64, num_hidden_layers=2, context_length=64),
    "ConvBERT": encoder("ConvBert", embedding_size=64, head_ratio=2, conv_kernel_size=3, **SMALL),
    "MobileBERT": encoder("MobileBert", embedding_size=32, intra_bottleneck_size=32, true_hidden_size=32,
                          num_feedforward_networks=2, **SMALL),
    "BERT, multiple choice": (multiple_choice, integers(3, TOKENS, below=WORDS), integers(below=3)),
    "Swin v2": vision("Swinv2", image_size=32, patch_size=4, embed_dim=16, depths=[1, 1], num_heads=[2, 2],
                      window_size=4),
    "YOLOS": (detection, numbers(3, 32, 32), integers(6)),
    "VideoMAE": (video_classes, numbers(4, 3, 32, 32), integers()),
    "Scores, squeeze()": (Scores, numbers(16), chances),
}
