/* SPDX-License-Identifier: MIT */
#include "blockdev/blockdev.h"
