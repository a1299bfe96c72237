/* SPDX-License-Identifier: Apache-2.0 */
#include "py/obj.h"
