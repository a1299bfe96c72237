/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The port seam as a program of ESP-IDF: its UART driver, which receives by interrupt, and the core's cycle counter. The main task
 * serves the line; it stays on one core, so that ticks are of one counter. For chips that only the framework's boot chain
 * starts (ESP32, ESP32-S3), and any other that it knows.
 */
#include "microc_port.h"

#include "driver/uart.h"
#include "esp_cpu.h"
#include "freertos/FreeRTOS.h"
#include "freertos/task.h"
#include "sdkconfig.h"

#ifdef MICROC_PORT_CORES
#include "microc_cores.h"
#endif

#define UART ((uart_port_t)MICROC_CONSOLE_UART)
/* Bytes that the driver keeps until they are read: no less than what the host may send ahead of an answer. */
#define RECEIVED_BYTES 1024
/* Byte times of silence after which the driver hands over what has come. */
#define SILENCE 2

int main(void);
void app_main(void);

void app_main(void)
{
    (void)main();
}

void microc_port_init(void)
{
    const uart_config_t line = {
        .baud_rate = MICROC_CONSOLE_BAUD,
        .data_bits = UART_DATA_8_BITS,
        .parity = UART_PARITY_DISABLE,
        .stop_bits = UART_STOP_BITS_1,
        .flow_ctrl = UART_HW_FLOWCTRL_DISABLE,
        .source_clk = UART_SCLK_DEFAULT,
    };
    ESP_ERROR_CHECK(uart_driver_install(UART, RECEIVED_BYTES, 0, 0, NULL, 0));
    ESP_ERROR_CHECK(uart_param_config(UART, &line));
    ESP_ERROR_CHECK(
        uart_set_pin(UART, MICROC_CONSOLE_TX_PIN, MICROC_CONSOLE_RX_PIN, UART_PIN_NO_CHANGE, UART_PIN_NO_CHANGE));
    ESP_ERROR_CHECK(uart_set_rx_timeout(UART, SILENCE));
#ifdef MICROC_PORT_CORES
    microc_port_cores_init();
#endif
}

/* Waits for the first byte, so that other tasks run, and takes what has come with it. */
int microc_port_read(uint8_t *data, size_t size)
{
    size_t ready = 0;
    (void)uart_get_buffered_data_len(UART, &ready);
    const size_t count = ready == 0u ? 1u : ready < size ? ready : size;
    return uart_read_bytes(UART, data, (uint32_t)count, portMAX_DELAY);
}

int microc_port_write(const uint8_t *data, size_t size)
{
    return size == 0u || uart_write_bytes(UART, data, size) >= 0 ? 0 : -1;
}

uint32_t microc_port_ticks(void)
{
    return (uint32_t)esp_cpu_get_cycle_count();
}

/* FreeRTOS has painted the stack of the main task. */
void microc_port_stack_paint(void)
{
}

uint32_t microc_port_stack_used(void)
{
    return (uint32_t)(CONFIG_ESP_MAIN_TASK_STACK_SIZE - uxTaskGetStackHighWaterMark(NULL));
}
