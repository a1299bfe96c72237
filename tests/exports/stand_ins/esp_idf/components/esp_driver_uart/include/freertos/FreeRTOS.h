/* SPDX-License-Identifier: Apache-2.0 */
#define portMAX_DELAY 0xFFFFFFFFu
