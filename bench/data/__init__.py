"""The data of a campaign, prepared once in the parent before any process is launched; numpy only, no torch.

    prepare("auto", kind="cifar10", data_root=None, seed=0)
      -> found (batch files or archive as torchvision stores them), else downloaded, else synthetic with a notice
      -> verified and converted once to .npy files, which all ranks map: they share the machine's page cache

Workers open the files with `np.load(path, mmap_mode="r")`.
"""

from bench.data.preparation import KINDS, prepare
from bench.data.specs import DATASETS, BatchFile, DatasetSpec, PreparedData

__all__ = ["DATASETS", "KINDS", "BatchFile", "DatasetSpec", "PreparedData", "prepare"]
