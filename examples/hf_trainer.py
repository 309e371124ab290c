"""Hugging Face's Trainer, fed by encoder.collate_fn, by packs of the same samples, and by a packing loader.

python examples/hf_trainer.py [PROCESSOR] [SHARDS]      (needs: pip install accelerate)
"""

import sys
from glob import glob

from transformers import Trainer, TrainerCallback, TrainingArguments

import packloom
from packloom.datasets import read_shard
from packloom.demo.model import tiny_model
from packloom.models import HFCollate, hf_model_inputs

processor, shards = [*sys.argv[1:], "demo-out/processor", "demo-out/shards"][:2]
encoder = packloom.TaskEncoder.from_pretrained(processor, max_length=256, max_pixels=24 * 28 * 28)


def settings(**options):
    return TrainingArguments(
        output_dir="demo-out/trainer",
        max_steps=2,
        per_device_train_batch_size=2,
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,  # the collate function reads the raw columns
        **options,
    )


class LoaderTrainer(Trainer):
    """The Trainer's own loop over the batches of a packloom loader, which has done all that a DataLoader would."""

    def __init__(self, *args, loader, **kwargs):
        super().__init__(*args, callbacks=[SaveLoader(loader)], **kwargs)
        self.loader = loader

    def get_train_dataloader(self):
        return ModelInputs(self.loader)


class ModelInputs:
    """A loader's batches as the arguments of the model."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        return (hf_model_inputs(batch, labels=True) for batch in self.loader)


class SaveLoader(TrainerCallback):
    """The loader's state into every checkpoint of the Trainer."""

    def __init__(self, loader):
        self.loader = loader

    def on_save(self, args, state, control, **_):
        folder = f"{args.output_dir}/checkpoint-{state.global_step}"
        packloom.save_state_dir(folder, self.loader.state_dict(), step=state.global_step)


samples = [raw for path in sorted(glob(f"{shards}/*.tar"))[:1] for raw in read_shard(path)][:16]
for name, collate in {"padded": encoder.collate_fn, "packed": HFCollate(encoder=encoder, layout="packed")}.items():
    print(name)
    arguments = settings(save_strategy="no")
    Trainer(model=tiny_model(encoder), args=arguments, train_dataset=samples, data_collator=collate).train()

print("loader")
loader = packloom.build_loader(shards, encoder, pack_length=256)
# To resume: model.from_pretrained(checkpoint) and loader.load_state_dict(packloom.load_state_dir(checkpoint)), then
# trainer.train(resume_from_checkpoint=checkpoint). The loader goes on by itself, so the Trainer must skip no batches.
LoaderTrainer(model=tiny_model(encoder), args=settings(save_steps=2, ignore_data_skip=True), loader=loader).train()
saved = packloom.load_state_dir("demo-out/trainer/checkpoint-2")
print(f"the loader's state is saved at batch {saved['batch']}")
