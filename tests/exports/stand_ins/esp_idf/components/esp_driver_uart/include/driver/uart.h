/* SPDX-License-Identifier: Apache-2.0 */
/* The part of ESP-IDF's UART driver that the port uses, on standard input and output. */
#include <stddef.h>
#include <stdint.h>

typedef int esp_err_t;
typedef int uart_port_t;
typedef struct {
    int baud_rate;
    int data_bits;
    int parity;
    int stop_bits;
    int flow_ctrl;
    int source_clk;
} uart_config_t;

enum { UART_DATA_8_BITS = 3, UART_PARITY_DISABLE = 0, UART_STOP_BITS_1 = 1, UART_HW_FLOWCTRL_DISABLE = 0 };
enum { UART_SCLK_DEFAULT = 4, UART_PIN_NO_CHANGE = -1 };
#define ESP_ERROR_CHECK(call) stand_in_check(call)

void stand_in_check(esp_err_t error);
esp_err_t uart_driver_install(uart_port_t port, int received, int sent, int queue, void *events, int flags);
esp_err_t uart_param_config(uart_port_t port, const uart_config_t *line);
esp_err_t uart_set_pin(uart_port_t port, int tx, int rx, int rts, int cts);
esp_err_t uart_set_rx_timeout(uart_port_t port, uint8_t symbols);
esp_err_t uart_get_buffered_data_len(uart_port_t port, size_t *size);
int uart_read_bytes(uart_port_t port, void *data, uint32_t size, uint32_t ticks);
int uart_write_bytes(uart_port_t port, const void *data, size_t size);
